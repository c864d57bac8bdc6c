"""Tiers behind the device's pages: one module for each place that evicted pages are kept in."""
