//! Tests of the framing: hostile lengths, every split point, arbitrary bytes.

use bytes::{BufMut, BytesMut};
use proptest::prelude::*;

use super::*;

/// A CopyData message with a piece of the stream.
fn data(start: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![b'd'];
    out.put_u32(4 + 25 + payload.len() as u32);
    out.put_u8(b'w');
    out.put_u64(start);
    out.put_u64(start);
    out.put_u64(77);
    out.put_slice(payload);
    out
}

fn keepalive(end: u64, reply: u8) -> Vec<u8> {
    let mut out = vec![b'd'];
    out.put_u32(4 + 18);
    out.put_u8(b'k');
    out.put_u64(end);
    out.put_u64(77);
    out.put_u8(reply);
    out
}

fn notice() -> Vec<u8> {
    let mut out = vec![b'N'];
    out.put_u32(4 + 3);
    out.put_slice(b"S\0\0");
    out
}

/// Frames as text, and the kinds of other messages between them, when the bytes arrive in these pieces.
fn read_in_pieces<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<String>, FrameError> {
    let (mut buffer, mut out) = (BytesMut::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let scan = scan(&buffer, Lsn::ZERO, |_| {})?;
            let run = buffer.split_to(scan.run);
            for frame in Frames::new(&run) {
                out.push(match frame? {
                    Frame::Data { start, payload, .. } => format!("{start} {payload:?}"),
                    other => format!("{other:?}"),
                });
            }
            match scan.next {
                Next::Other(header) => {
                    out.push(format!("other {}", header.kind));
                    let _ = buffer.split_to(header.total);
                }
                Next::Partial { missing } => {
                    assert!(missing > 0);
                    break;
                }
            }
        }
    }
    Ok(out)
}

#[test]
fn every_split_point_gives_the_same_frames() {
    let stream = [data(10, b"first"), keepalive(12, 1), notice(), data(13, b""), keepalive(14, 0)].concat();
    let whole = read_in_pieces([&stream[..]]).unwrap();
    assert_eq!(whole.len(), 5, "{whole:?}");
    assert_eq!(whole[2], "other 78");
    for a in 0..stream.len() {
        for b in a..stream.len() {
            let pieces = [&stream[..a], &stream[a..b], &stream[b..]];
            assert_eq!(read_in_pieces(pieces).unwrap(), whole, "split at {a} and {b}");
        }
    }
    assert_eq!(read_in_pieces(stream.chunks(1)).unwrap(), whole);
}

#[test]
fn tells_what_is_missing() {
    let message = data(10, b"first");
    let missing = |bytes: &[u8]| scan(bytes, Lsn::ZERO, |_| {}).unwrap().next;
    assert_eq!(missing(&[]), Next::Partial { missing: 5 });
    assert_eq!(missing(&message[..3]), Next::Partial { missing: 2 });
    assert_eq!(missing(&message[..7]), Next::Partial { missing: message.len() - 7 });
}

#[track_caller]
fn check_refused(bytes: &[u8], expect: FrameError) {
    let got = scan(bytes, Lsn::new(5), |_| {});
    assert_eq!(got, Err(expect));
}

#[test]
fn hostile_lengths_are_refused_before_anything_is_allocated() {
    check_refused(&[b'd', 0, 0, 0, 3], FrameError::Length { kind: b'd', length: 3 });
    check_refused(&[b'd', 0, 0, 0, 0], FrameError::Length { kind: b'd', length: 0 });
    let limit = MAX_STREAM_MESSAGE_BYTES;
    let too_long = |near| FrameError::TooLong { kind: b'd', length: u32::MAX, limit, near: Lsn::new(near) };
    check_refused(&[b'd', 255, 255, 255, 255], too_long(5));
    let mut known = vec![b'd', 255, 255, 255, 255, b'w'];
    known.put_u64(0x16_0000_0001);
    check_refused(&known, too_long(0x16_0000_0001));
    assert!(too_long(0x16_0000_0001).to_string().contains("16/1"), "the position is named");
    check_refused(&[b'd', 0, 0, 0, 4], FrameError::Truncated);
    check_refused(&[b'd', 0, 0, 0, 5, b'w'], FrameError::Truncated);
    check_refused(&[b'd', 0, 0, 0, 5, b'?'], FrameError::UnknownKind { kind: b'?' });
    let mut long = keepalive(1, 0);
    long[4] += 2;
    long.extend([0, 0]);
    check_refused(&long, FrameError::Trailing { extra: 2 });
}

#[test]
fn a_payload_is_never_printed() {
    let message = data(10, b"secret");
    let frame = Frame::parse(&message[HEADER_BYTES..]).unwrap();
    assert_eq!(format!("{frame:?}"), "Data { start: 0/A, 6 bytes }");
    assert_eq!(format!("{:?}", Frames::new(&message)), "Frames { 36 bytes }");
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read_in_pieces([&bytes[..]]);
        let _ = Frames::new(&bytes).count();
    }

    #[test]
    fn one_wrong_byte_never_panics(at in any::<prop::sample::Index>(), byte in any::<u8>(), piece in 1usize..40) {
        let mut stream = [data(10, b"first"), keepalive(12, 1), notice(), data(13, b"x")].concat();
        let at = at.index(stream.len());
        stream[at] = byte;
        let _ = read_in_pieces(stream.chunks(piece));
        let _ = Frames::new(&stream).count();
    }

    #[test]
    fn pieces_do_not_matter(payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..12),
                            piece in 1usize..100) {
        let stream: Vec<u8> = payloads.iter().enumerate().flat_map(|(n, p)| data(n as u64, p)).collect();
        let whole = read_in_pieces([&stream[..]]).unwrap();
        prop_assert_eq!(whole.len(), payloads.len());
        prop_assert_eq!(read_in_pieces(stream.chunks(piece)).unwrap(), whole);
    }
}
