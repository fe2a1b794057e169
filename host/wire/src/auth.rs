//! Proves who we are, and lets the server prove that it knows the password.
//!
//! Holds: SCRAM-SHA-256, md5 and clear text, the last two only where nobody can listen. Refuses to know sockets: the
//! caller says whether the way is private. Read next: [`crate::connection`].

use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::{
    md5_hash,
    sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256},
};
use postgres_protocol::message::backend::{AuthenticationSaslBody, Message};
use postgres_protocol::message::frontend;
use secrecy::ExposeSecret;

use crate::config::SourceOptions;
use crate::error::{Kind, WireError};
use crate::link::{Link, Reply, server_error};
use crate::verdict::Phase;

/// Answers the server's questions until it is satisfied. The startup message must be in the outbox.
pub(crate) async fn authenticate(link: &mut Link, options: &SourceOptions, private: bool) -> Result<(), WireError> {
    loop {
        match next(link).await? {
            Message::AuthenticationOk => return Ok(()),
            Message::AuthenticationCleartextPassword => {
                only_where_private(private, "clear text")?;
                send_password(link, password(options)?)?;
            }
            Message::AuthenticationMd5Password(body) => {
                only_where_private(private, "md5")?;
                let hash = md5_hash(options.user.as_bytes(), password(options)?, body.salt());
                send_password(link, hash.as_bytes())?;
            }
            Message::AuthenticationSasl(body) => scram(link, &body, password(options)?).await?,
            Message::AuthenticationGss | Message::AuthenticationSspi => return Err(unsupported("Kerberos or SSPI")),
            Message::AuthenticationKerberosV5 | Message::AuthenticationScmCredential => {
                return Err(unsupported("an obsolete method"));
            }
            _ => return Err(WireError::protocol("something else than a question for a password")),
        }
    }
}

async fn next(link: &mut Link) -> Result<Message, WireError> {
    match link.reply(Phase::Connect).await? {
        Reply::Message(Message::ErrorResponse(body)) => Err(server_error(Phase::Connect, body.fields())),
        Reply::Message(message) => Ok(message),
        Reply::CopyBoth => Err(WireError::protocol("a stream before authentication")),
    }
}

fn password(options: &SourceOptions) -> Result<&[u8], WireError> {
    let password = options.password.as_ref().map(|secret| secret.expose_secret().as_bytes());
    password.filter(|bytes| !bytes.is_empty()).ok_or_else(|| Kind::PasswordMissing.into())
}

fn only_where_private(private: bool, method: &'static str) -> Result<(), WireError> {
    if private { Ok(()) } else { Err(Kind::PasswordExposed { method }.into()) }
}

fn unsupported(method: &'static str) -> WireError {
    Kind::AuthUnsupported { method }.into()
}

fn send_password(link: &mut Link, password: &[u8]) -> Result<(), WireError> {
    if password.contains(&0) {
        return Err(Kind::Nul.into());
    }
    frontend::password_message(password, &mut link.outbox)
        .map_err(|e| WireError::unreadable("a password that is too long", e))
}

/// SCRAM without channel binding: `n`, because `y` would claim that we could have bound.
///
/// Returns only after the server has proved that it knows the password too.
async fn scram(link: &mut Link, offer: &AuthenticationSaslBody, password: &[u8]) -> Result<(), WireError> {
    let offered = offer.mechanisms().any(|name| Ok(name == SCRAM_SHA_256)).unwrap_or(false);
    if !offered {
        return Err(unsupported("SASL without SCRAM-SHA-256"));
    }
    let unsendable = |e| WireError::unreadable("an authentication answer that is too long", e);
    let unproven = |_| WireError::from(Kind::AuthUnproven);
    let mut exchange = ScramSha256::new(password, ChannelBinding::unsupported());
    frontend::sasl_initial_response(SCRAM_SHA_256, exchange.message(), &mut link.outbox).map_err(unsendable)?;
    let Message::AuthenticationSaslContinue(body) = next(link).await? else {
        return Err(Kind::AuthUnproven.into());
    };
    exchange.update(body.data()).map_err(unproven)?;
    frontend::sasl_response(exchange.message(), &mut link.outbox).map_err(unsendable)?;
    let Message::AuthenticationSaslFinal(body) = next(link).await? else {
        return Err(Kind::AuthUnproven.into());
    };
    exchange.finish(body.data()).map_err(unproven)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Host;
    use secrecy::SecretString;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    fn link() -> (Link, DuplexStream) {
        let (ours, theirs) = duplex(4096);
        (Link::new(Box::new(ours)), theirs)
    }

    fn options(password: Option<&str>) -> SourceOptions {
        let mut options = SourceOptions::new(Host::Tcp("db".into()), "u", "d");
        options.password = password.map(SecretString::from);
        options
    }

    fn question(kind: u32, rest: &[u8]) -> Vec<u8> {
        let length = 8 + rest.len() as u32;
        [&b"R"[..], &length.to_be_bytes(), &kind.to_be_bytes(), rest].concat()
    }

    /// What comes of it when the server says these bytes, and what we sent.
    async fn talk(says: &[u8], private: bool, password: Option<&str>) -> (Result<(), WireError>, Vec<u8>) {
        let (mut link, mut server) = link();
        server.write_all(says).await.unwrap();
        let (result, _) = tokio::join!(
            async {
                let result = authenticate(&mut link, &options(password), private).await;
                drop(link);
                result
            },
            server.shutdown()
        );
        let mut sent = Vec::new();
        server.read_to_end(&mut sent).await.unwrap();
        (result, sent)
    }

    fn halt(result: &Result<(), WireError>) -> &'static str {
        result.as_ref().unwrap_err().halt_name()
    }

    #[tokio::test]
    async fn weak_methods_are_refused_where_somebody_can_listen() {
        for says in [question(3, b""), question(5, b"salt")] {
            let (result, sent) = talk(&says, false, Some("pw")).await;
            assert!(matches!(result.as_ref().unwrap_err().kind(), Kind::PasswordExposed { .. }));
            assert_eq!(halt(&result), "authentication");
            assert!(sent.is_empty(), "nothing of the password leaves");
        }
    }

    #[tokio::test]
    async fn weak_methods_work_where_nobody_can_listen() {
        let ok = question(0, b"");
        let (result, sent) = talk(&[question(3, b""), ok.clone()].concat(), true, Some("pä @")).await;
        result.unwrap();
        assert_eq!(sent, [&b"p\0\0\0\x0a"[..], "pä @".as_bytes(), b"\0"].concat());
        let (result, sent) = talk(&[question(5, b"salt"), ok].concat(), true, Some("pw")).await;
        result.unwrap();
        assert!(sent.windows(3).any(|w| w == b"md5") && !sent.windows(2).any(|w| w == b"pw"));
    }

    #[tokio::test]
    async fn a_missing_password_is_named() {
        let (result, _) = talk(&question(10, b"SCRAM-SHA-256\0\0"), false, None).await;
        assert!(matches!(result.unwrap_err().kind(), Kind::PasswordMissing));
    }

    #[tokio::test]
    async fn other_methods_are_named() {
        for says in [question(7, b""), question(10, b"SCRAM-SHA-1\0\0"), question(9, b"")] {
            let (result, _) = talk(&says, true, Some("pw")).await;
            assert!(matches!(result.unwrap_err().kind(), Kind::AuthUnsupported { .. }));
        }
    }

    #[tokio::test]
    async fn a_server_that_skips_its_proof_is_not_believed() {
        let says = [question(10, b"SCRAM-SHA-256\0\0"), question(0, b"")].concat();
        let (result, _) = talk(&says, true, Some("pw")).await;
        assert!(matches!(result.unwrap_err().kind(), Kind::AuthUnproven));
        let says = [question(10, b"SCRAM-SHA-256\0\0"), question(11, b"r=forged,s=AAAA,i=4096")].concat();
        let (result, _) = talk(&says, true, Some("pw")).await;
        assert!(matches!(result.unwrap_err().kind(), Kind::AuthUnproven));
    }

    #[tokio::test]
    async fn a_refusal_keeps_the_code_and_nothing_but_the_primary_message() {
        let fields = b"SFATAL\0C28P01\0Mpassword authentication failed\0Dsecret detail\0\0";
        let says = [&b"E"[..], &(4 + fields.len() as u32).to_be_bytes(), fields].concat();
        let (result, _) = talk(&says, true, Some("pw")).await;
        let error = result.unwrap_err();
        assert_eq!((error.sqlstate(), error.halt_name()), (Some("28P01"), "authentication"));
        assert!(error.to_string().contains("password authentication failed"));
        assert!(!format!("{error} {error:?}").contains("secret detail"));
    }

    #[tokio::test]
    async fn a_closed_connection_is_retried() {
        let (result, _) = talk(b"R\0\0", true, Some("pw")).await;
        assert!(result.unwrap_err().is_connection_loss());
    }
}
