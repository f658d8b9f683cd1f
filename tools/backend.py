"""The build backend: setuptools', with the torch that the environment has.

The extension fits one version of torch, so it is built with the one that is installed and never with one that pip would
fetch for the build. pip builds in an environment of its own, which does not see the installed packages; their folder is
put at the end of the path.
"""

import importlib.util
import sys
import sysconfig

from setuptools.build_meta import *  # noqa: F403

for _folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
    if importlib.util.find_spec("torch") is None and _folder not in sys.path:
        sys.path.append(_folder)
if importlib.util.find_spec("torch") is None:
    raise SystemExit(
        "softnpu is built against the torch that it will run with, and there is none in this environment. "
        "Install torch first, for example: pip install torch==2.13.0"
    )
