"""Matrix products: plain, grouped, quantised, and the check that finds a faulty one."""
