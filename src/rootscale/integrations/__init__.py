"""Thin adapters to the tools people train with; each needs its library, which is imported only here."""
