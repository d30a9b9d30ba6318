//! Chat templates: how a family writes down who said what.

use crate::error::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value, context};
use ork_weights::model::gguf::Gguf;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Whoever sets the model up.
    System,
    /// Whoever asks.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// What templates call it.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// One message of a conversation.
///
/// ```
/// use ork_llm::{Message, Role};
///
/// let message = Message { role: Role::User, content: "Hello!".into() };
/// assert_eq!(message.role, Role::User);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What.
    pub content: String,
}

/// A model's template: Jinja, as Python's libraries run it.
///
/// ```
/// use ork_llm::{ChatTemplate, Message, Role};
///
/// let source = "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}\n{% endfor %}\
///     {% if add_generation_prompt %}[assistant]{% endif %}";
/// let template = ChatTemplate::new(source, "", "")?;
/// let hello = Message { role: Role::User, content: " Hello! ".into() };
/// assert_eq!(template.render(&[hello])?, "[user] Hello!\n[assistant]");
/// # Ok::<(), ork_llm::Error>(())
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    begin: String,
    end: String,
}

const NAME: &str = "chat";

/// Steps that a template may take: thousands of messages need far fewer, and one that never ends
/// comes from a file.
const STEPS: u64 = 10_000_000;

impl ChatTemplate {
    /// Takes the source of a template, and what it finds as `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// [`Error::Template`] when it is no template.
    pub fn new(source: &str, begin: &str, end: &str) -> Result<ChatTemplate> {
        let mut environment = Environment::new();
        // What Python's libraries set for these templates.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(failed)?);
        environment.set_fuel(Some(STEPS));
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |reason: String| -> Result<String, _> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, reason))
        });
        environment.add_function("strftime_now", |format: String| now(&format));
        environment.add_template_owned(NAME, source.to_owned()).map_err(failed)?;
        Ok(ChatTemplate { environment, begin: begin.into(), end: end.into() })
    }

    /// The template that a header carries; `None` for models that are made to continue text.
    ///
    /// # Errors
    /// As [`new`](ChatTemplate::new).
    pub fn from_header(header: &Gguf) -> Result<Option<ChatTemplate>> {
        let Some(source) = header.text("tokenizer.chat_template") else { return Ok(None) };
        let token = |key: &str| {
            let id = header.number(&format!("tokenizer.ggml.{key}"))?;
            let tokens = header.array("tokenizer.ggml.tokens")?;
            let text = tokens.strings()?.nth(usize::try_from(id).ok()?)?;
            String::from_utf8(text.to_vec()).ok()
        };
        let (begin, end) = (token("bos_token_id"), token("eos_token_id"));
        let (begin, end) = (begin.unwrap_or_default(), end.unwrap_or_default());
        ChatTemplate::new(source, &begin, &end).map(Some)
    }

    /// The text of a conversation, up to where the answer begins.
    ///
    /// # Errors
    /// [`Error::Template`] when the template does not take these messages.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        let template = self.environment.get_template(NAME).map_err(failed)?;
        let message =
            |of: &Message| context! { role => of.role.name(), content => of.content.as_str() };
        let context = context! {
            messages => messages.iter().map(message).collect::<Vec<Value>>(),
            add_generation_prompt => true,
            bos_token => self.begin.as_str(),
            eos_token => self.end.as_str(),
        };
        template.render(context).map_err(failed)
    }
}

fn failed(error: minijinja::Error) -> Error {
    Error::Template { reason: error.to_string() }
}

/// The date of today in UTC, which some templates tell the model.
fn now(format: &str) -> Result<String, minijinja::Error> {
    let now = jiff::Timestamp::now().to_zoned_datetime(jiff::tz::TimeZone::UTC);
    let text = jiff::fmt::strtime::format(format, &now);
    text.map_err(|error| minijinja::Error::new(ErrorKind::InvalidOperation, error.to_string()))
}
