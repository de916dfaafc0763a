//! Data-parallel training with candle.
