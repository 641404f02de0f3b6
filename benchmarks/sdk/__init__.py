"""What an SDK costs: braid_client beside tritonclient, the same requests to one server.

__main__   runs the contenders in turns, prints the ratios
clients    one contender in a process of its own
"""
