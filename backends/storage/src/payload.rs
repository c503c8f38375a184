//! [`Payload`]: bytes to write, in as many pieces as the caller has them.

use bytes::Bytes;

/// Bytes to write, as a list of pieces that are sent one after the other without being copied together.
#[derive(Debug, Clone, Default)]
pub struct Payload(Vec<Bytes>);

impl Payload {
    /// Total length in bytes.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|piece| piece.len() as u64).sum()
    }

    /// Whether there is no byte at all.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Bytes::is_empty)
    }

    /// The pieces, in order.
    pub fn pieces(&self) -> &[Bytes] {
        &self.0
    }

    /// All bytes in one piece; copies only when there are several.
    pub fn to_bytes(&self) -> Bytes {
        match self.0.as_slice() {
            [] => Bytes::new(),
            [only] => only.clone(),
            several => several.concat().into(),
        }
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self(vec![bytes])
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<&'static [u8]> for Payload {
    fn from(bytes: &'static [u8]) -> Self {
        Bytes::from_static(bytes).into()
    }
}

impl From<&'static str> for Payload {
    fn from(text: &'static str) -> Self {
        text.as_bytes().into()
    }
}

impl FromIterator<Bytes> for Payload {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Self {
        Self(pieces.into_iter().collect())
    }
}
