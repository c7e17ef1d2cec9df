"""Schedules groups, runs attempts, records what they did."""
