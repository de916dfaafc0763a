//! Diagnosis of hosts, environments, logs and running jobs: facts are read, compared with requirements and
//! known faults, and turned into findings with cause and remedy.
//!
//! Nothing here measures or prints. Every part returns an [`examination::Examination`].

pub mod environment;
pub mod examination;
pub mod finding;
pub mod host;
pub mod input;
pub mod job;
pub mod knowledge;
pub mod log;
pub mod topology;
pub mod words;
