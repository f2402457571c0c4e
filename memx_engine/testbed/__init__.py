"""A simulated cluster with behaviour that neither the cost model nor the predictor sees: a judge, not a helper.

It shares no code with :mod:`memx_engine.cost`; ``docs/testbed.md`` states every hidden effect and its size.
"""
