// Vercel's AI SDK with one provider: streams from the starter, and lets the scripted model call a tool.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { GATEWAY, KEY, TEXT, SCRIPTED } = process.env;
const openai = createOpenAI({ baseURL: `${GATEWAY}/v1`, apiKey: KEY });
const models = {
  openai: openai, // its default is the Responses API
  "openai-chat": openai.chat,
  anthropic: createAnthropic({ baseURL: `${GATEWAY}/v1`, apiKey: KEY }),
  compatible: createOpenAICompatible({ name: "tessera", baseURL: `${GATEWAY}/v1`, apiKey: KEY }),
};
const model = models[process.argv[2]];

const stream = streamText({
  model: model(TEXT),
  prompt: "Say hello.",
  maxOutputTokens: 16,
  onError: ({ error }) => {
    throw error;
  },
});
let streamed = "";
for await (const piece of stream.textStream) streamed += piece;

const called = [];
const result = await generateText({
  model: model(SCRIPTED),
  prompt: 'What is the weather in Rome? CALL weather {"city": "Rome"}',
  stopWhen: stepCountIs(3),
  tools: {
    weather: tool({
      description: "The weather of a city.",
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => {
        called.push(city);
        return "Sunny";
      },
    }),
  },
});
console.log(JSON.stringify({ streamed, called, answer: result.text }));
