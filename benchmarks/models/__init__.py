"""Models: what their files mean, beside other readers of them."""
