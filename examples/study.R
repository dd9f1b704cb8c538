# The figure of regions, and mixed models of reading times, from the tables of the tutorial:
# docs/for-psycholinguists.md. In their folder: Rscript examples/study.R
library(ggplot2)
library(lme4)

regions <- read.csv("regions.csv", encoding = "UTF-8")
figure <- ggplot(regions, aes(factor(unit), surprisal, colour = condition)) +
  stat_summary(fun.data = mean_se, position = position_dodge(0.3)) +
  labs(x = "region", y = "surprisal (bits)")
ggsave("regions-r.png", figure, width = 5, height = 3.2, dpi = 150)

words <- read.csv("words.csv", encoding = "UTF-8")
words$length <- nchar(trimws(words$text))
words <- words[order(words$item, words$unit), ]
before <- function(x) c(NA, head(x, -1))
for (name in c("surprisal", "length")) {
  words[[paste0("previous_", name)]] <- ave(words[[name]], words$item, FUN = before)
}

# Made up, to try the recipe: yours is read.csv("times.csv"), with subject, item, unit and rt in ms.
set.seed(1)
times <- merge(data.frame(subject = 1:20), words[c("item", "unit", "surprisal")])
habit <- rnorm(20, 5.8, 0.1)
times$rt <- exp(rnorm(nrow(times), habit[times$subject] + 0.004 * times$surprisal, 0.2))
times$surprisal <- NULL

data <- merge(times, words, by = c("item", "unit"))
data <- subset(data, !is.na(previous_surprisal))  # both models of the same rows
base <- lmer(log(rt) ~ length + previous_length + unit + (1 | subject) + (1 | item),
             data, REML = FALSE)
full <- update(base, . ~ . + surprisal + previous_surprisal)
print(fixef(full), digits = 2)
anova(base, full)
