{{- define "kafkadur.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kafkadur.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kafkadur.labels" -}}
{{ include "kafkadur.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "kafkadur.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "kafkadur.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "kafkadur.name" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{/* What has to be said, and what must not be said twice. */}}
{{- define "kafkadur.check" -}}
{{- if not .Values.kafka.bootstrap -}}
{{- fail "kafka.bootstrap is missing: name host:port of Kafka's brokers" -}}
{{- end -}}
{{- if and (not .Values.redis.url) (not .Values.redis.existingSecret) (not .Values.valkey.enabled) -}}
{{- fail "Redis is missing: set redis.existingSecret, redis.url, or for a trial valkey.enabled" -}}
{{- end -}}
{{- if and .Values.redis.url .Values.redis.existingSecret -}}
{{- fail "redis.url and redis.existingSecret both name Redis: leave one out" -}}
{{- end -}}
{{- if or (contains "@" .Values.redis.url) (regexMatch "[?&]\\w*password=" .Values.redis.url) -}}
{{- fail "redis.url has a user or a password: put the URL into a secret, redis.existingSecret" -}}
{{- end -}}
{{- if and .Values.keda.enabled (not .Values.keda.prometheus) -}}
{{- fail "keda.prometheus is missing: the address at which KEDA reaches Prometheus" -}}
{{- end -}}
{{- if and .Values.keda.enabled (not .Values.metrics.enabled) -}}
{{- fail "keda scales by what metrics tell: set metrics.enabled" -}}
{{- end -}}
{{- if and .Values.prometheusRule.enabled (not .Values.metrics.enabled) -}}
{{- fail "prometheusRule is about what metrics tell: set metrics.enabled" -}}
{{- end -}}
{{- if lt (int .Values.keda.maxReplicas) (int .Values.keda.minReplicas) -}}
{{- fail "keda.maxReplicas is below keda.minReplicas" -}}
{{- end -}}
{{- if and .Values.kafka.config .Values.kafka.existingSecret -}}
{{- fail "kafka.config and kafka.existingSecret both have settings of Kafka: put all of them into the secret" -}}
{{- end -}}
{{- if and .Values.service.enabled (not .Values.service.tokensSecret) -}}
{{- fail "service.tokensSecret is missing: a secret with the file that `kafkadur token` writes" -}}
{{- end -}}
{{- if and .Values.service.ingress.enabled (not .Values.service.enabled) -}}
{{- fail "service.ingress leads to the service: set service.enabled" -}}
{{- end -}}
{{- if and .Values.service.ingress.enabled (or (not .Values.service.ingress.host) (not .Values.service.ingress.tlsSecret)) -}}
{{- fail "service.ingress needs host and tlsSecret: tokens are not sent in clear text" -}}
{{- end -}}
{{- with .Values.gateway -}}
{{- if and .enabled (not .usersSecret) (not .clientCertificates) -}}
{{- fail "gateway.usersSecret is missing: a secret with the file that `kafkadur gateway-user` writes; or set gateway.clientCertificates" -}}
{{- end -}}
{{- if and .enabled (not .tlsSecret) (not .plainText) -}}
{{- fail "gateway.tlsSecret is missing: passwords are not sent in clear text, unless gateway.plainText allows it" -}}
{{- end -}}
{{- if and .enabled .clientCertificates (not .tlsSecret) -}}
{{- fail "gateway.clientCertificates needs gateway.tlsSecret, with ca.crt" -}}
{{- end -}}
{{- if and .enabled (eq (int .port) (int .probePort)) -}}
{{- fail "gateway.port and gateway.probePort are the same" -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := .Values.kafka.config -}}
{{- if and (regexMatch "(?i)password|passphrase|secret|token|jaas|oauthbearer\\.config|\\.pem$" $name) (not (regexMatch "token\\.endpoint" $name)) -}}
{{- fail (printf "kafka.config.%s is a secret: put it into kafka.existingSecret" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Where Kafka and Redis are, as settings of kafkadur, and the client id of workers. */}}
{{- define "kafkadur.environment" -}}
{{ include "kafkadur.servers" . }}
{{- if .Values.clientId }}
- name: KAFKADUR_CLIENT_ID
  value: {{ .Values.clientId | quote }}
- name: KAFKADUR_CLIENT_ID_POLICY
  value: {{ .Values.clientIdPolicy }}
{{- end }}
{{- end -}}

{{/* The same without a client id. */}}
{{- define "kafkadur.servers" -}}
- name: KAFKADUR_KAFKA
  value: {{ .Values.kafka.bootstrap | quote }}
{{- if or .Values.kafka.existingSecret .Values.kafka.config }}
- name: KAFKADUR_KAFKA_CONFIG
  value: /etc/kafkadur/kafka/kafka.properties
{{- end }}
- name: KAFKADUR_REDIS
{{- if .Values.redis.existingSecret }}
  valueFrom:
    secretKeyRef:
      name: {{ .Values.redis.existingSecret }}
      key: {{ .Values.redis.existingSecretKey }}
{{- else }}
  value: {{ .Values.redis.url | default (printf "redis://%s-valkey:6379/0" (include "kafkadur.name" .)) | quote }}
{{- end }}
- name: KAFKADUR_NAMESPACE
  value: {{ .Values.namespace | quote }}
{{- if .Values.tracing }}
- name: KAFKADUR_TRACING
  value: "1"
{{- end }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kafkadur.envFrom" -}}
{{- with .Values.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Which nodes: of all pods that speak to Kafka and Redis. */}}
{{- define "kafkadur.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "kafkadur.mounts" -}}
- name: tmp
  mountPath: /tmp
{{- if or .Values.kafka.existingSecret .Values.kafka.config }}
- name: kafka
  mountPath: /etc/kafkadur/kafka
  readOnly: true
{{- end }}
{{- if .Values.kafka.tlsSecret }}
- name: kafka-tls
  mountPath: /etc/kafkadur/kafka-tls
  readOnly: true
{{- end }}
{{- if .Values.redis.tlsSecret }}
- name: redis-tls
  mountPath: /etc/kafkadur/redis-tls
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kafkadur.volumes" -}}
- name: tmp
  emptyDir: {}
{{- if .Values.kafka.existingSecret }}
- name: kafka
  secret:
    secretName: {{ .Values.kafka.existingSecret }}
    defaultMode: 0440
    items:
      - key: {{ .Values.kafka.existingSecretKey }}
        path: kafka.properties
{{- else if .Values.kafka.config }}
- name: kafka
  configMap:
    name: {{ include "kafkadur.name" . }}-kafka
{{- end }}
{{- if .Values.kafka.tlsSecret }}
- name: kafka-tls
  secret:
    secretName: {{ .Values.kafka.tlsSecret }}
    defaultMode: 0440
{{- end }}
{{- if .Values.redis.tlsSecret }}
- name: redis-tls
  secret:
    secretName: {{ .Values.redis.tlsSecret }}
    defaultMode: 0440
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kafkadur.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.podSecurityContext }}
{{ toYaml . }}
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "kafkadur.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}
