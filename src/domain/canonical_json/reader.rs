//! The strict reader: RFC 8259 and no more, one pass, any input gives a value or an error.

use super::{DEPTH_MAX, Json, JsonError, Members, Number, into_nfc};

pub(super) fn read(text: &str) -> Result<Json, JsonError> {
    let mut reader = Reader { text, at: 0 };
    let value = reader.value(0)?;
    reader.skip_blanks();
    if reader.at < text.len() {
        return Err(reader.expected("the end of the text"));
    }
    Ok(value)
}

/// Reads `text` from `at` on. `at` only ever stops before an ASCII byte or at the end, so it is
/// always a character boundary where it is sliced.
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    /// `depth` is the number of arrays and objects around the value.
    fn value(&mut self, depth: usize) -> Result<Json, JsonError> {
        self.skip_blanks();
        match self.peek() {
            Some(b'{' | b'[') if depth == DEPTH_MAX => Err(JsonError::TooDeep { offset: self.at }),
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.array(depth + 1),
            Some(b'"') => Ok(Json::String(self.string()?)),
            Some(b'-' | b'0'..=b'9') => Ok(Json::Number(self.number()?)),
            _ => self.word(),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, JsonError> {
        self.at += 1;
        let mut members = Vec::new();
        self.skip_blanks();
        if !self.eat(b'}') {
            loop {
                self.skip_blanks();
                if self.peek() != Some(b'"') {
                    return Err(self.expected("a member name"));
                }
                let name = self.string()?;
                self.skip_blanks();
                if !self.eat(b':') {
                    return Err(self.expected("`:`"));
                }
                members.push((name, self.value(depth)?));
                self.skip_blanks();
                if self.eat(b'}') {
                    break;
                }
                if !self.eat(b',') {
                    return Err(self.expected("`,` or `}`"));
                }
            }
        }
        let members = Members::from_text(members);
        members.map(Json::Object).map_err(|name| JsonError::DoubledMember { name })
    }

    fn array(&mut self, depth: usize) -> Result<Json, JsonError> {
        self.at += 1;
        let mut elements = Vec::new();
        self.skip_blanks();
        if !self.eat(b']') {
            loop {
                elements.push(self.value(depth)?);
                self.skip_blanks();
                if self.eat(b']') {
                    break;
                }
                if !self.eat(b',') {
                    return Err(self.expected("`,` or `]`"));
                }
            }
        }
        Ok(Json::Array(elements))
    }

    fn word(&mut self) -> Result<Json, JsonError> {
        let words =
            [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))];
        let found = words.into_iter().find(|(word, _)| self.rest().starts_with(word.as_bytes()));
        let (word, value) = found.ok_or_else(|| self.expected("a value"))?;
        self.at += word.len();
        Ok(value)
    }

    fn number(&mut self) -> Result<Number, JsonError> {
        let offset = self.at;
        let negative = self.eat(b'-');
        let whole = self.digits()?;
        if whole.len() > 1 && whole.starts_with('0') {
            return Err(JsonError::Syntax { offset, expected: "a number without leading zeros" });
        }
        let fraction = if self.eat(b'.') { self.digits()? } else { "" };
        let mut exponent = 0;
        if self.eat(b'e') || self.eat(b'E') {
            let below_one = self.eat(b'-');
            if !below_one {
                self.eat(b'+');
            }
            // One that overflows i64 is out of range however many digits the mantissa has.
            exponent = self.digits()?.parse().unwrap_or(i64::MAX);
            if below_one {
                exponent = -exponent;
            }
        }
        Number::new(negative, whole, fraction, exponent)
            .ok_or(JsonError::NumberOutOfRange { offset })
    }

    fn digits(&mut self) -> Result<&'a str, JsonError> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start {
            return Err(self.expected("a digit"));
        }
        Ok(&self.text[start..self.at])
    }

    fn string(&mut self) -> Result<String, JsonError> {
        self.at += 1;
        let mut text = String::new();
        loop {
            let start = self.at;
            while self.peek().is_some_and(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\') {
                self.at += 1;
            }
            text.push_str(&self.text[start..self.at]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(into_nfc(text));
                }
                Some(b'\\') => text.push(self.escape()?),
                Some(_) => return Err(JsonError::ControlCharacter { offset: self.at }),
                None => return Err(self.expected("the end of the string")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, JsonError> {
        let offset = self.at;
        self.at += 1;
        let c = match self.peek() {
            Some(b'u') => return self.unicode_escape(offset),
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            _ => {
                return Err(JsonError::Syntax { offset, expected: "an escape JSON knows" });
            }
        };
        self.at += 1;
        Ok(c)
    }

    fn unicode_escape(&mut self, offset: usize) -> Result<char, JsonError> {
        self.at += 1;
        let first = self.code_unit()?;
        let mut second = None;
        if (0xd800..0xdc00).contains(&first) && self.rest().starts_with(b"\\u") {
            self.at += 2;
            second = Some(self.code_unit()?);
        }
        // A pair decodes to one character; a lone half fails, the first as the second.
        match char::decode_utf16([first].into_iter().chain(second)).next() {
            Some(Ok(c)) => Ok(c),
            _ => Err(JsonError::LoneSurrogate { offset }),
        }
    }

    fn code_unit(&mut self) -> Result<u16, JsonError> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            let digit = digit.ok_or_else(|| self.expected("four hexadecimal digits"))?;
            unit = unit << 4 | digit as u16;
            self.at += 1;
        }
        Ok(unit)
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn peek(&self) -> Option<u8> {
        self.rest().first().copied()
    }

    fn rest(&self) -> &'a [u8] {
        &self.text.as_bytes()[self.at..]
    }

    fn expected(&self, expected: &'static str) -> JsonError {
        JsonError::Syntax { offset: self.at, expected }
    }
}
