"""Measuring the approximations: distances between distributions, bits per byte, speed."""
