"""Types every part of Braid shares. Standard library only: importing ``core`` is always cheap."""
