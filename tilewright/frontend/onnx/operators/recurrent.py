"""LSTM, GRU, RNN."""
