"""Reference kernels of other programs' own operators, each package for one program; found when the program asks for them."""
