"""Rewrites of tensor expressions that keep their meaning."""
