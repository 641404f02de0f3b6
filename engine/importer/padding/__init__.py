"""Whether padding an open axis changes what a request gets, found out at import."""
