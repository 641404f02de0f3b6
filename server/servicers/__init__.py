"""gRPC servicers: convert, call, convert. Nothing is decided here."""
