"""Types that all packages of Braid share; they import the standard library only."""
