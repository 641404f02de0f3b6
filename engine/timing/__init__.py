"""Measurements on the device, which yield between repetitions: inference goes first."""
