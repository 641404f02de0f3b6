"""The web console on the HTTP port: pages made on the server, a little script to keep them fresh.

    request ──site.py──> who asks (sessions.py), which page ──> pages/*.py ──data──> rendering.py
                                                                   │                     │
                    registry, runner, metrics, device <──facts.py──┘        templates/*.html

It only shows things, until someone signs in with the admin token. Nothing is loaded from
elsewhere, and pages work without the script, only not live.
"""
