"""Tests of Fibre: what its agents are told, what guards them, and how they are led."""
