"""The metadata of one volume: LMDB, its rows, and the values made of them."""
