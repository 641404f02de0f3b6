"""Bounds of connections of HTTP/2.

intake     windows for what the peer sends, and memory of its messages on their way in
keepalive  whether the peer has greeted, and is there still
patience   budget for frames that carry nothing
turns      how long all connections read before the event loop looks after others
"""
