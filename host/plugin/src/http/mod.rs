//! Requests of plugins over HTTP: granted, resolved, checked, dialled, signed, capped and told of by the host.
//!
//! Holds: everything between a call of `wasi:http/outgoing-handler` and a socket. Refuses to know which rows a request
//! carries. Nothing of a request but its host and method is ever printed: paths, queries, headers and bodies hold secrets and
//! values.
//!
//! What happens to a request, in order; each step is a file:
//!
//! ```text
//! hooks (granted? in flight?) → client (collect, inject, sign) → resolve → address (may it be dialled?) → connect → body
//!  └ grant, access, url                                                                                    audit ─┘
//! ```
//!
//! The checked address is the one that is dialled, so a name that answers differently the next time changes nothing. No
//! redirect is followed, no proxy of the environment is used, no cookie is kept. Bodies of requests are collected before
//! anything is dialled: a request leaves whole, with its length and its signature, or not at all.

pub(crate) mod access;
mod address;
mod audit;
mod body;
mod client;
mod connect;
mod fault;
pub(crate) mod grant;
mod hooks;
mod resolve;
mod url;

#[cfg(test)]
mod client_tests;

pub(crate) use client::Client;
pub(crate) use hooks::Hooks;
