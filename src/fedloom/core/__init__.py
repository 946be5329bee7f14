"""Types, the seam and the arithmetic on which every algorithm is one small file."""
