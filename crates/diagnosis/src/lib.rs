//! Facts about a host and its libraries, and reasons for which collectives cannot use them.
//!
//! Nothing here measures: facts are read, compared with what is needed, and turned into reasons with advice.

pub mod host;
pub mod reasons;
