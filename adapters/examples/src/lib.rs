//! Training programs: what they share.
