//! TLS towards Postgres, in the modes that libpq knows.
//!
//! Holds: how a mode becomes a rustls configuration. Refuses to know sockets; the state connection uses it as well.
//! Read next: [`crate::config::TlsOptions`], [`crate::socket`].

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use crate::config::{TlsMode, TlsOptions};

/// TLS cannot be set up; an operator has to correct a file or an option.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be read.
    #[error("the TLS file {} cannot be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file without what it should hold.
    #[error("the TLS file {} holds no {wanted} in PEM form", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        wanted: &'static str,
    },
    /// A CA certificate that cannot be used.
    #[error("the TLS file {} holds a certificate that cannot be used as a CA", path.display())]
    BadRoot {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// The machine has no trusted CAs.
    #[error("the system has no trusted CA certificates; install ca-certificates or set sslrootcert")]
    NoSystemRoots,
    /// One of the two files of a client certificate.
    #[error("a client certificate needs both sslcert and sslkey")]
    HalfClientCertificate,
    /// A client certificate and a key that do not fit together.
    #[error("the client certificate {} cannot be used with its key", path.display())]
    BadClientCertificate {
        /// The certificate file.
        path: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// The verifier could not be built from the CAs.
    #[error("the trusted CA certificates cannot be used")]
    BadVerifier(#[source] rustls::client::VerifierBuilderError),
    /// The cryptographic provider supports none of the protocol versions.
    #[error("TLS is not available")]
    Provider(#[source] rustls::Error),
    /// A host that no certificate can name.
    #[error("the host of the source is not a name that a certificate can carry")]
    HostName,
}

/// What is checked about the server's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    Nothing,
    Chain,
    ChainAndName,
}

/// The check a mode asks for. As libpq does, a CA file given with a mode that checks nothing is checked all the same.
fn check_of(options: &TlsOptions) -> Check {
    match options.mode {
        TlsMode::VerifyFull => Check::ChainAndName,
        TlsMode::VerifyCa => Check::Chain,
        TlsMode::Disable | TlsMode::Prefer | TlsMode::Require if options.root_cert.is_some() => Check::Chain,
        TlsMode::Disable | TlsMode::Prefer | TlsMode::Require => Check::Nothing,
    }
}

/// Builds the client configuration for these options. Reads the files they name, on the calling thread.
pub fn client_config(options: &TlsOptions) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let verifier = verifier(options, &provider)?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Provider)?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    match (&options.client_cert, &options.client_key) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(cert), Some(key)) => {
            let chain = read_certificates(cert)?;
            let wanted = || TlsError::Empty { path: key.clone(), wanted: "unencrypted private key" };
            let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|_| wanted())?;
            let refused = |source| TlsError::BadClientCertificate { path: cert.clone(), source };
            builder.with_client_auth_cert(chain, key).map_err(refused)
        }
        _ => Err(TlsError::HalfClientCertificate),
    }
}

fn verifier(options: &TlsOptions, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    let check = check_of(options);
    if check == Check::Nothing {
        return Ok(Arc::new(AnyCertificate(provider.signature_verification_algorithms)));
    }
    let roots = Arc::new(roots(options.root_cert.as_deref())?);
    let full = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider))
        .build()
        .map_err(TlsError::BadVerifier)?;
    Ok(if check == Check::Chain { Arc::new(AnyName(full)) } else { full })
}

fn roots(file: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    match file {
        Some(path) => {
            for certificate in read_certificates(path)? {
                store.add(certificate).map_err(|source| TlsError::BadRoot { path: path.to_owned(), source })?;
            }
        }
        None => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if store.is_empty() {
                return Err(TlsError::NoSystemRoots);
            }
        }
    }
    Ok(store)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Unreadable { path: path.to_owned(), source })
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let empty = || TlsError::Empty { path: path.to_owned(), wanted: "certificate" };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    found.ok().filter(|certificates| !certificates.is_empty()).ok_or_else(empty)
}

/// Accepts every certificate, but still makes the server prove that it holds the key of the one it shows.
#[derive(Debug)]
struct AnyCertificate(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

/// Checks the chain and overlooks only a name that does not fit. webpki compares names last, so a name error means
/// that everything before it was right.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.0.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ca_file_turns_checking_on_as_in_libpq() {
        let check = |mode, root: Option<&str>| {
            check_of(&TlsOptions { mode, root_cert: root.map(PathBuf::from), ..TlsOptions::default() })
        };
        assert_eq!(check(TlsMode::Require, None), Check::Nothing);
        assert_eq!(check(TlsMode::Prefer, None), Check::Nothing);
        assert_eq!(check(TlsMode::Require, Some("ca")), Check::Chain);
        assert_eq!(check(TlsMode::VerifyCa, None), Check::Chain);
        assert_eq!(check(TlsMode::VerifyFull, None), Check::ChainAndName);
        assert_eq!(check(TlsMode::VerifyFull, Some("ca")), Check::ChainAndName);
    }

    #[test]
    fn says_which_file_is_wrong() {
        let directory = tempfile::tempdir().unwrap();
        let empty = directory.path().join("empty.pem");
        fs::write(&empty, "nothing here").unwrap();
        let root = |path: PathBuf| TlsOptions { mode: TlsMode::VerifyCa, root_cert: Some(path), ..Default::default() };
        let error = client_config(&root(empty.clone())).unwrap_err();
        assert!(matches!(error, TlsError::Empty { .. }), "{error}");
        assert!(error.to_string().contains("empty.pem"));
        let error = client_config(&root(directory.path().join("absent.pem"))).unwrap_err();
        assert!(matches!(error, TlsError::Unreadable { .. }), "{error}");
        let half = TlsOptions { client_cert: Some(empty), ..Default::default() };
        assert!(matches!(client_config(&half), Err(TlsError::HalfClientCertificate)));
    }
}
