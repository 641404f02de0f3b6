"""HTTP port: uvicorn within limits, in the event loop of the server, and Starlette's routes.

server        listens, starts and stops
connection    one connection: size of the head, seconds of each phase
connections   their limits
application   one request: which are answered, for whose pages, and what every answer says
requests      a request's body, up to a limit; whether another site's page sent it
routes        probes and scrapers
"""
