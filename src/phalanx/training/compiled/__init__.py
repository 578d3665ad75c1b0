"""Training and evaluation of networks by one compiled loop, with gradients written by hand."""
