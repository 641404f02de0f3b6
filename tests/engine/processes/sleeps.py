"""A child that sleeps."""

import time

if __name__ == "__main__":
    time.sleep(600)
