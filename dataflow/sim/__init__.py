"""The simulator: the same plans, engines and operators in virtual time, over a modelled network."""
