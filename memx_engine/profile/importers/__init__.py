"""Measurements from elsewhere: tables of iterations and of layers (CSV), and Megatron-LM training logs."""
