"""Types that all packages of Braid share; they import msgspec and the standard library."""
