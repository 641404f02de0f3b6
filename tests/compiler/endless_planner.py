"""A planner that computes and never says anything."""

if __name__ == "__main__":
    while True:
        pass
