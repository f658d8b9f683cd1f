"""Matrix products: plain, grouped, quantized, and the check that finds a faulty one."""
