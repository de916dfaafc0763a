//! libfabric's providers, discovery, and the objects of an endpoint.

pub(crate) mod discovery;
pub(crate) mod domain;
pub(crate) mod objects;
pub(crate) mod provider;
