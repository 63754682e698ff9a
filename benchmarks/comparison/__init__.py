"""The parts of compare.py: C interface, cases, contestants, guard, clock, tables."""
