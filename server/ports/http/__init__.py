"""HTTP port: uvicorn within limits, in the event loop of the server, and Starlette's routes.

server        listens, starts and stops
connection    one connection: size of the head, seconds of each phase
connections   all of them: how many there may be, and which gives way
application   one request: which are answered, and what every answer says
bodies        a request's body, up to a limit
routes        probes and scrapers
limits        seconds, bytes and connections
"""
