"""What Braid is delivered with: licences, known vulnerabilities, hashes. ``make audit``."""
