"""Measurements on the device. Everything here yields between repetitions: inference goes first."""
