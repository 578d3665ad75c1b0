"""Papers for the tests: runs of a moment on handwritten digits."""
