"""Bounds of connections of HTTP/2.

arrivals   memory of messages on their way in, of all connections
intake     windows for what the peer sends, and its messages until their handlers have them
keepalive  whether the peer has greeted, and is there still
patience   budget for frames that carry nothing
turns      how long all connections read before the event loop looks after others
"""
