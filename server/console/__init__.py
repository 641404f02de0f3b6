"""The web console on the HTTP port: pages made on the server, a little script to keep them fresh.

    request ──site.py──> who asks (sessions.py), which page ──> pages/*.py ──data──> rendering.py
                                                                   │                     │
                    registry, runner, metrics, device <──facts.py──┘        templates/*.html
            └──calls of scripts──> registration.py, inference of REST ──> the same RPCs as elsewhere

What is there is changed by those who signed in with the admin token. Nothing is loaded from
elsewhere. Without the script pages are not live, and send no files.
"""
