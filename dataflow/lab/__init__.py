"""An emulated cluster on one Linux machine: network namespaces on a switch, with shaped links and shares of the CPU."""
